"""How a decoder serves: the time of its steps by batch and context, room for requests, and the load that keeps limits."""
