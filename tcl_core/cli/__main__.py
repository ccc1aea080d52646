from tcl_core.cli import main

main()
