"""Synthetic models: started here, made by the job's own Python with the scripts in `host_python`."""
