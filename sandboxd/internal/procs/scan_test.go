package procs

import (
	"os"
	"testing"
)

func TestStatLinesAreParsed(t *testing.T) {
	const rest = " S 10 11 12 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 987654 1 2"
	cases := map[string]struct {
		line string
		good bool
	}{
		"an ordinary name":                  {"42 (sleep)" + rest, true},
		"a name with parentheses and space": {"42 (a) S 1 (b)" + rest, true},
		"no name":                           {"42", false},
		"cut short":                         {"42 (sleep) S 10 11", false},
	}
	for name, one := range cases {
		t.Run(name, func(t *testing.T) {
			got, ok := parse(42, []byte(one.line))
			if ok != one.good {
				t.Fatalf("%+v, %v", got, ok)
			}
			want := entry{pid: 42, parent: 10, group: 11, session: 12, state: 'S', started: 987654}
			if ok && got != want {
				t.Fatalf("%+v", got)
			}
		})
	}
}

func TestTheScanFindsThisProcess(t *testing.T) {
	all, err := scan()
	if err != nil {
		t.Skip(err)
	}
	if one, ok := all[os.Getpid()]; !ok || one.parent != os.Getppid() || one.started == 0 {
		t.Fatalf("%+v", one)
	}
}

func TestDescentIsByTheNearestDecidedAncestor(t *testing.T) {
	all := map[int]entry{
		2: {pid: 2, parent: 1}, 3: {pid: 3, parent: 2}, 4: {pid: 4, parent: 3},
		5: {pid: 5, parent: 1}, 6: {pid: 6, parent: 7}, 7: {pid: 7, parent: 6},
	}
	mine := map[int]bool{1: false, 2: true}
	for pid, want := range map[int]bool{2: true, 3: true, 4: true, 5: false, 6: false} {
		if got := descends(pid, all, mine); got != want {
			t.Errorf("process %d: %v", pid, got)
		}
	}
}
