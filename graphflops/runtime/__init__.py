"""What runs on a machine, to check predictions: the only importer of triton, and of torch beside `exporters.live`."""
