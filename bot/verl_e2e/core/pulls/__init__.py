"""Pull requests and merge groups: who may ask for what, what to do next, the gate, the card and the checks."""
