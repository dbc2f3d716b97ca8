"""What a training run cost, as laws and documents of models ask for it: FLOPs, hours, energy, thresholds."""
