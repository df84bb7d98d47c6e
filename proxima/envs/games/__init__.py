"""Video games as tasks on pixels: Super Mario Bros. and Atari."""
