package execs

import (
	"errors"
	"fmt"
	"syscall"
)

// Failure is a command that didn't start: one of the protocol's codes, and what to do.
type Failure struct{ Code, Message string }

func (f Failure) Error() string { return f.Code + ": " + f.Message }

// ErrNoShell is asking for a shell in an image without one.
var ErrNoShell = errors.New("the image has neither bash nor sh in its PATH: give command, a list of strings, instead of shell")

// errEnding is the end of all commands at once.
var errEnding = errors.New("the sandbox is ending")

func notFound(program string) Failure {
	return Failure{"not_found", fmt.Sprintf("%s: no such program in the image's PATH, or in the one in env", program)}
}

// startFailure explains what fork and exec answered.
func startFailure(program, cwd string, err error) Failure {
	switch {
	case errors.Is(err, syscall.ENOENT):
		return Failure{"not_found", fmt.Sprintf("%s: no such program, or the interpreter that it names is missing", program)}
	case errors.Is(err, syscall.ENOTDIR):
		return Failure{"not_found", fmt.Sprintf("%s: a part of the path is no folder", program)}
	case errors.Is(err, syscall.EACCES):
		return Failure{"permission", fmt.Sprintf("%s: the user may not execute it, or not enter %s", program, orHere(cwd))}
	case errors.Is(err, syscall.EPERM):
		return Failure{"permission", fmt.Sprintf("%s: not permitted; the sandbox may lack the right to change users", program)}
	case errors.Is(err, syscall.EAGAIN):
		return Failure{"start_failed", "no more processes can be started: the limit of the pod, or of the user, is used up. " +
			"End some, or reset the sandbox"}
	case errors.Is(err, syscall.ENOMEM):
		return Failure{"start_failed", "there is no memory to start a process: end some, or raise the sandbox's memory limit"}
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return Failure{"start_failed", "too many open files: end commands that run in the background"}
	case errors.Is(err, syscall.E2BIG):
		return Failure{"start_failed", "the command and its environment are longer than the kernel takes (128 KiB for one " +
			"argument): upload a script and run that"}
	case errors.Is(err, syscall.ENOEXEC):
		return Failure{"start_failed", fmt.Sprintf("%s: no program of this machine's kind, nor a script with a #! line", program)}
	}
	return Failure{"start_failed", fmt.Sprintf("%s: %v", program, err)}
}

func orHere(cwd string) string {
	if cwd == "" {
		return "the working folder"
	}
	return cwd
}
