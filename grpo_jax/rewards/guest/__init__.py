"""Programs that run inside the sandbox. Each is one file of standard library, copied to where it runs."""
