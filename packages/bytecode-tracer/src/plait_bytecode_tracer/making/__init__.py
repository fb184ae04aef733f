"""Classes and objects that the traced code makes."""
