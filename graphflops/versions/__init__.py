"""Models at revisions of a repository, and their history."""
