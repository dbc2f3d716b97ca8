"""What torch.compile makes of a program: its joint graph, what is saved for the backward, kernels and their order."""
