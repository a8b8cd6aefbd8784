"""Starting, confining and ending the programs of a run."""
