package procs

import (
	"fmt"
	"os"
	"syscall"
	"time"
)

const (
	// grace is how long a command has between TERM and KILL.
	grace = 2 * time.Second
	// persistence bounds how long killing is tried: a process in a hung system call can't be killed.
	persistence = 5 * time.Second
	pause       = 20 * time.Millisecond
)

// Kill ends a command with all that it started: TERM first, KILL for what is left after the grace.
func (t *Table) Kill(tree *Tree) error {
	tree.look()
	t.signalGroup(tree.Main, syscall.SIGTERM)
	t.signalMembers(tree, syscall.SIGTERM, tree.Main.PID)
	if t.await(tree, grace) {
		return nil
	}
	for deadline := time.Now().Add(persistence); time.Now().Before(deadline); time.Sleep(pause) {
		t.signalGroup(tree.Main, syscall.SIGKILL)
		if t.signalMembers(tree, syscall.SIGKILL, 0) == 0 && tree.Main.HasEnded() {
			return nil
		}
	}
	return fmt.Errorf("processes of command %d could not be killed", tree.Main.PID)
}

// await is true once nothing of the command is left, false when the time is over.
func (t *Table) await(tree *Tree, limit time.Duration) bool {
	for deadline := time.Now().Add(limit); time.Now().Before(deadline); time.Sleep(pause) {
		if !tree.Main.HasEnded() {
			continue
		}
		left, err := t.members(tree)
		if err != nil {
			// Without /proc only the group is known, and whether anybody is in it.
			if syscall.Kill(-tree.Main.PID, 0) != nil {
				return true
			}
		} else if len(left) == 0 {
			return true
		}
	}
	return false
}

// signalMembers signals all members but those of one group, and returns how many there were. One signal to the whole
// group is what stops a process that forks faster than one can look.
func (t *Table) signalMembers(tree *Tree, number syscall.Signal, but int) int {
	found, err := t.members(tree)
	if err != nil {
		if but == 0 && syscall.Kill(-tree.Main.PID, number) == nil {
			return 1
		}
		return 0
	}
	reached := but == tree.Main.PID
	for _, one := range found {
		if one.group == tree.Main.PID {
			if !reached {
				// Somebody of ours is in it, so the number is still the command's.
				_ = syscall.Kill(-one.group, number)
				reached = true
			}
			continue
		}
		one.signal(number)
	}
	return len(found)
}

// KillAll kills everything else in the sandbox and collects it.
func (t *Table) KillAll() error {
	for deadline := time.Now().Add(persistence); time.Now().Before(deadline); time.Sleep(pause) {
		left := t.killOthers()
		t.Reap()
		if left == 0 {
			return nil
		}
	}
	return fmt.Errorf("some processes could not be killed within %s", persistence)
}

// killOthers kills all others of the pid namespace where this is its first process, else all descendants.
func (t *Table) killOthers() int {
	if os.Getpid() == 1 {
		if syscall.Kill(-1, syscall.SIGKILL) == syscall.ESRCH {
			return 0
		}
		return 1
	}
	all, err := scan()
	if err != nil {
		return 0
	}
	self := os.Getpid()
	mine := map[int]bool{self: true}
	count := 0
	for pid, one := range all {
		if pid != self && descends(pid, all, mine) {
			one.signal(syscall.SIGKILL)
			count++
		}
	}
	return count
}
