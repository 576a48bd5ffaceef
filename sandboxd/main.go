// The daemon of a sandbox: runs commands, moves files and forwards ports for callers that hold the sandbox's token.
// As the first process of its container it also collects every process that ends there.
package main

import (
	"errors"
	"fmt"
	"os"

	"gymtrain.dev/sandboxd/internal/disk"
)

// version is set by the linker.
var version = "dev"

const usage = `usage:
  gymtrain-sandboxd serve        run the daemon (configured by GYMTRAIN_SANDBOX_* variables)
  gymtrain-sandboxd install DIR  copy this program to DIR/gymtrain-sandboxd
  gymtrain-sandboxd version      print the version`

func main() {
	arguments := os.Args[1:]
	var err error
	switch {
	case len(arguments) == 1 && arguments[0] == "serve":
		err = serve(disk.InAContainer)
	case len(arguments) == 2 && arguments[0] == "install":
		err = install(arguments[1])
	case len(arguments) == 1 && arguments[0] == "version":
		fmt.Println(version)
	default:
		fmt.Fprintln(os.Stderr, usage)
		os.Exit(2)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "gymtrain-sandboxd:", err)
		os.Exit(exitCode(err))
	}
}

// exitCode tells the broker why the daemon ended.
func exitCode(err error) int {
	var full *disk.Full
	if errors.As(err, &full) {
		return full.Code
	}
	return 1
}
