"""What a reader may ignore: settings, checks, runs, weights, processes."""
