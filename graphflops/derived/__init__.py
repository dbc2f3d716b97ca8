"""What follows from a report: other sizes, several models, costs of an item."""
