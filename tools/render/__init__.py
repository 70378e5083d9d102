"""``tools render``: files for other programs (nginx, Triton's repository), made from fleet.yaml."""
