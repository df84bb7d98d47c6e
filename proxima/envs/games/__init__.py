"""Video games with pixel observations: Super Mario Bros. and Atari."""
