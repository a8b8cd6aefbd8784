"""What several runs on one host share: its GPUs, and the right to be there at all."""
