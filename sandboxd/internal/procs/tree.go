package procs

import (
	"os"
	"syscall"
)

// Tree is a command with all that it started.
type Tree struct {
	Main *Process
	// Marker is a variable, NAME=VALUE, that only this command and what it starts have in their environment.
	Marker string
	// Sole says that no other command runs: orphans that can't be told apart are this one's.
	Sole func() bool

	started uint64
	seen    bool
}

// members finds the command's processes: by session and group, by parent, and, for those that left all of these, by the
// marker. What clears its environment and detaches twice over is only found where the command is the sole one and the
// environment unreadable.
func (t *Table) members(tree *Tree) ([]entry, error) {
	all, err := scan()
	if err != nil {
		return nil, err
	}
	tree.look()
	self := os.Getpid()
	mine := map[int]bool{self: false}
	sole := tree.Sole != nil && tree.Sole()
	for pid, one := range all {
		if pid == self || pid != tree.Main.PID && t.isLive(pid) {
			mine[pid] = false
			continue
		}
		if one.started < tree.started {
			continue
		}
		if one.session == tree.Main.PID || one.group == tree.Main.PID {
			mine[pid] = true
			continue
		}
		has, known := one.marked(tree.Marker)
		if has || !known && sole && one.parent == self {
			mine[pid] = true
		}
	}
	var found []entry
	for pid, one := range all {
		if descends(pid, all, mine) {
			found = append(found, one)
		}
	}
	return found, nil
}

// look remembers when the command started, while it is there to tell.
func (tree *Tree) look() {
	if tree.seen {
		return
	}
	if one, ok := read(tree.Main.PID); ok {
		tree.started, tree.seen = one.started, true
	}
}

// descends climbs from a process to the first one that is decided, and remembers what it found for all on the way.
func descends(pid int, all map[int]entry, mine map[int]bool) bool {
	var climbed []int
	is := false
	for {
		decided, known := mine[pid]
		if known {
			is = decided
			break
		}
		one, exists := all[pid]
		if !exists || len(climbed) > len(all) {
			break
		}
		climbed = append(climbed, pid)
		pid = one.parent
	}
	for _, pid := range climbed {
		mine[pid] = is
	}
	return is
}

// signal reaches exactly the process that was scanned: the handle pins it, and only then its start is compared.
func (e entry) signal(number syscall.Signal) {
	handle, err := os.FindProcess(e.pid)
	if err != nil {
		return
	}
	defer handle.Release()
	if now, ok := read(e.pid); ok && now.started == e.started {
		_ = handle.Signal(number)
	}
}
