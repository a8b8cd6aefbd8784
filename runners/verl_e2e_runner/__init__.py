"""What runs on the GPU host: preflight, the Bridge checks, verl's wrapper, the watch and the evidence it leaves."""
