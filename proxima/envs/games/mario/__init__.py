"""Super Mario Bros. as a task on pixels: the game file, the emulator, and the env."""
