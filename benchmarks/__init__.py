"""What chatmill costs over calling the model yourself, measured side by side in one run: `scripts/bench`."""
