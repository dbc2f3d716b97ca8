"""How torch.compile's inductor turns a graph into kernels: what is computed again, what is stored, and what is fused."""
