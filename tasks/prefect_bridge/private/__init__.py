"""The only place that uses private or undocumented parts of Prefect; each module names them in `USES`."""
