package procs

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"strconv"
)

// entry is what /proc says about one process.
type entry struct {
	pid, parent, group, session int
	state                       byte
	// started is in clock ticks since boot: with the pid it names a process for good.
	started uint64
}

var errNoProc = errors.New("/proc is not mounted")

// scan lists the processes of this pid namespace, but zombies, which no signal reaches.
func scan() (map[int]entry, error) {
	folder, err := os.Open("/proc")
	if err != nil {
		return nil, errNoProc
	}
	defer folder.Close()
	names, err := folder.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	found := make(map[int]entry, len(names))
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if one, ok := read(pid); ok && one.state != 'Z' && one.state != 'X' {
			found[pid] = one
		}
	}
	if len(found) == 0 {
		return nil, errNoProc
	}
	return found, nil
}

// read parses /proc/PID/stat. The program's name may hold anything, so the fields are counted from its last parenthesis.
func read(pid int) (entry, bool) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return entry{}, false
	}
	return parse(pid, text)
}

func parse(pid int, text []byte) (entry, bool) {
	end := bytes.LastIndexByte(text, ')')
	if end < 0 {
		return entry{}, false
	}
	fields := bytes.Fields(text[end+1:])
	if len(fields) < 20 {
		return entry{}, false
	}
	one := entry{pid: pid, state: fields[0][0]}
	for field, target := range map[int]*int{1: &one.parent, 2: &one.group, 3: &one.session} {
		value, err := strconv.Atoi(string(fields[field]))
		if err != nil {
			return entry{}, false
		}
		*target = value
	}
	started, err := strconv.ParseUint(string(fields[19]), 10, 64)
	one.started = started
	return one, err == nil
}

// marked says whether a process was started with the variable, and whether that could be told at all: the
// environment of another user's process is readable for few.
func (e entry) marked(pair string) (has, known bool) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(e.pid) + "/environ")
	if err != nil {
		return false, !errors.Is(err, fs.ErrPermission)
	}
	for _, one := range bytes.Split(text, []byte{0}) {
		if string(one) == pair {
			return true, true
		}
	}
	return false, true
}
