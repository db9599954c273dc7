"""Architectures as drawings: ``canvas``, and one file for each chapter."""
