"""From what a run left behind to a verdict: evidence for each criterion, whose fault it is, and the card."""
