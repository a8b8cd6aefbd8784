"""What ended a run and whose fault it was, by ordered rules over the facts of its log."""
