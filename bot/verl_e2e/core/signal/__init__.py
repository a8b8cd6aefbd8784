"""The learning signal of a short run: do the metrics move as training should move them?"""
