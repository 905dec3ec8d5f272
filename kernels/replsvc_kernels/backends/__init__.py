"""Ways to start a kernel; `base` says what each offers."""
