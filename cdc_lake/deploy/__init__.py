"""Deployment on Databricks: the bundle, its check, and what its jobs call."""
