"""What the program does, one file for each thing; ports come as arguments."""
