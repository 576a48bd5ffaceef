package host

import (
	"os"
	"os/signal"
	"syscall"
	"time"
)

// reapEvery bounds how long a process stays uncollected should a SIGCHLD ever be missed.
const reapEvery = 5 * time.Second

// Watch calls reap whenever a child may have ended, and tells when the daemon shall end.
//
// The first process of a container ignores all requests to end: the kernel doesn't say whether one comes from the
// kubelet or from a command inside (`kill -TERM -1`), and the kubelet kills after the pod's grace period.
func Watch(reap func()) <-chan os.Signal {
	told := make(chan os.Signal, 1)
	if os.Getpid() == 1 {
		// Go's runtime ends the process, or dumps its stacks, for signals that nobody asked for.
		unheard := make(chan os.Signal, 1)
		for number := syscall.Signal(1); number < 65; number++ {
			switch number {
			case syscall.SIGKILL, syscall.SIGSTOP, syscall.SIGCHLD, syscall.SIGURG:
			default:
				signal.Notify(unheard, number)
			}
		}
		handleTheRest()
	} else {
		signal.Notify(told, syscall.SIGINT, syscall.SIGTERM)
	}
	// A channel of its own: one waiting signal is enough, and no other can take its place.
	children := make(chan os.Signal, 1)
	signal.Notify(children, syscall.SIGCHLD)
	go func() {
		ticker := time.NewTicker(reapEvery)
		for {
			select {
			case <-children:
			case <-ticker.C:
			}
			reap()
		}
	}()
	return told
}
