"""Deployment on Databricks: the bundle, and what its jobs call."""
