"""How a program runs on a GPU: its calls in order, where values lie, and how long they live; read by memory and time."""
