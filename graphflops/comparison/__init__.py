"""Compares two programs: pairs their sizes, modules and calls, and lists what differs. See `models.compare`."""
