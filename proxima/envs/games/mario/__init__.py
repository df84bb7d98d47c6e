"""Super Mario Bros. with pixel observations: the game file, the emulator, and the env."""
