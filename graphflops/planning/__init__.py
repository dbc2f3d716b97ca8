"""How a program may be laid out over many devices, and what each layout costs; [the page](docs/plan.md)."""
