package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"
)

func TestCommandsRunAndTellHowTheyEnded(t *testing.T) {
	t.Parallel()
	d := asAny(t, "IN_THE_POD=yes")
	folder := t.TempDir()
	cases := map[string]struct {
		request       map[string]any
		out, errorOut string
		code          int
		signal        string
	}{
		"a command":            {map[string]any{"command": []string{"printf", "%s|", "a b", "c"}}, "a b|c|", "", 0, ""},
		"a shell text":         {map[string]any{"shell": "echo out; echo err >&2; exit 7"}, "out\n", "err\n", 7, ""},
		"a signal":             {map[string]any{"shell": "kill -SEGV $$"}, "", "", 139, "SEGV"},
		"a folder":             {map[string]any{"shell": "pwd", "cwd": folder}, folder + "\n", "", 0, ""},
		"variables":            {map[string]any{"shell": "echo $IN_THE_POD $MINE", "env": map[string]string{"MINE": "é"}}, "yes é\n", "", 0, ""},
		"none of the daemon's": {map[string]any{"shell": "env | grep -c GYMTRAIN_SANDBOX_TOKEN"}, "0\n", "", 1, ""},
		"input":                {map[string]any{"command": []string{"cat"}, "stdin": base64of("in\x00put")}, "in\x00put", "", 0, ""},
		"input nobody reads":   {map[string]any{"command": []string{"true"}, "stdin": base64of(strings.Repeat("x", 1<<20))}, "", "", 0, ""},
		"no input":             {map[string]any{"shell": "cat; readlink /proc/self/fd/0"}, "/dev/null\n", "", 0, ""},
		"binary output":        {map[string]any{"shell": `printf '\377\000\200'`}, "\xff\x00\x80", "", 0, ""},
		"its own user by name": {map[string]any{"shell": "id -u", "user": fmt.Sprint(os.Getuid())}, fmt.Sprintln(os.Getuid()), "", 0, ""},
		"closed output":        {map[string]any{"shell": "exec >&- 2>&-; sleep 0.2; exit 5"}, "", "", 5, ""},
	}
	for name, one := range cases {
		t.Run(name, func(t *testing.T) {
			got := d.exec(one.request)
			if got.last.Type != "exit" || got.last.Code != one.code || got.last.signal() != one.signal ||
				string(got.out) != one.out || string(got.err) != one.errorOut {
				t.Fatal(got)
			}
		})
	}
}

func TestCommandsThatCannotStartSayWhy(t *testing.T) {
	t.Parallel()
	d := asAny(t)
	text := t.TempDir() + "/text"
	if err := os.WriteFile(text, []byte("no program"), 0o644); err != nil {
		t.Fatal(err)
	}
	cases := map[string]struct {
		request        map[string]any
		code, mentions string
	}{
		"no such program":         {map[string]any{"command": []string{"no-such-program"}}, "not_found", "PATH"},
		"no such path":            {map[string]any{"command": []string{"/no/such/program"}}, "not_found", "/no/such/program"},
		"not executable":          {map[string]any{"command": []string{text}}, "permission", "execute"},
		"no such folder":          {map[string]any{"command": []string{"true"}, "cwd": "/no/such"}, "bad_cwd", "/no/such"},
		"a file as folder":        {map[string]any{"command": []string{"true"}, "cwd": text}, "bad_cwd", "no folder"},
		"no such user":            {map[string]any{"command": []string{"true"}, "user": "no-such-user"}, "bad_user", "no-such-user"},
		"longer than kernel take": {map[string]any{"shell": "true " + strings.Repeat("x", 200_000)}, "start_failed", "upload a script"},
	}
	for name, one := range cases {
		t.Run(name, func(t *testing.T) {
			last := d.exec(one.request).last
			if last.Type != "error" || last.Error != one.code || !strings.Contains(last.Message, one.mentions) {
				t.Fatalf("%+v", last)
			}
		})
	}
	t.Run("no shell", func(t *testing.T) {
		body := `{"shell":"true","env":{"PATH":"/no/such"}}`
		if status, said := d.call("POST", "/v1/exec", strings.NewReader(body)); status != 422 || !strings.Contains(said, "no_shell") {
			t.Fatal(status, said)
		}
	})
}

func TestATimeoutKillsWhatTheCommandStarted(t *testing.T) {
	t.Parallel()
	cases := map[string]string{
		"its children":                 "sleep 7001 & sleep 7001",
		"one in another session":       "setsid sleep 7002 & sleep 7002",
		"an orphan in another session": "(setsid sleep 7003 >/dev/null 2>&1 &); sleep 7003",
		"those that ignore TERM":       "trap '' TERM; (trap '' TERM; setsid sleep 7005 &) ; sleep 7005; sleep 7005",
	}
	for name, text := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := asFirst(t)
			got := d.exec(map[string]any{"shell": text, "timeoutSeconds": 0.4})
			if !got.last.TimedOut || got.last.Code < 128 || got.last.Seconds < 0.4 {
				t.Fatal(got)
			}
			if left := d.running("sleep 70"); left > 0 {
				t.Fatalf("%d left", left)
			}
		})
	}
}

func TestACallerThatLeavesTakesItsCommandAlong(t *testing.T) {
	t.Parallel()
	d := asFirst(t)
	for one := range d.lines(map[string]any{"shell": "setsid sleep 7100 & sleep 7100"}) {
		if one.Type == "start" {
			d.eventually("it runs", func() bool { return d.running("sleep 7100") >= 2 })
			break
		}
	}
	http.DefaultClient.CloseIdleConnections()
	d.eventually("it is gone", func() bool { return d.running("sleep 7100") == 0 })
}

func TestWhatRunsInTheBackgroundStays(t *testing.T) {
	t.Parallel()
	d := asFirst(t)
	// It holds both pipes, and writes to them after the command's end was told.
	got := d.shell("(while sleep 0.1; do echo tick || exit; done; :) & echo started")
	if !strings.HasPrefix(string(got.out), "started\n") || got.last.Code != 0 {
		t.Fatal(got)
	}
	time.Sleep(300 * time.Millisecond)
	if d.running("sleep 0.1") == 0 {
		t.Fatal("the background command was killed")
	}
}

func TestOutputIsCutInTheMiddle(t *testing.T) {
	t.Parallel()
	d := asAny(t, "GYMTRAIN_SANDBOX_MAX_OUTPUT=1000")
	const whole = 100_000
	cases := map[string]struct {
		limit any
		kept  int
	}{"the sandbox's limit": {nil, 1000}, "its own": {10, 10}, "none": {0, 0}, "more than there may be": {1 << 40, 1000}}
	for name, one := range cases {
		t.Run(name, func(t *testing.T) {
			got := d.exec(map[string]any{
				"shell": fmt.Sprintf("head -c %d /dev/zero | tr '\\0' a; printf end; printf small >&2", whole), "maxOutputBytes": one.limit,
			})
			if len(got.out) != one.kept || got.last.OutTruncated != whole+3-one.kept {
				t.Fatal(len(got.out), got.last)
			}
			if one.kept >= 10 && (!bytes.HasSuffix(got.out, []byte("end")) || string(got.err) != "small" || got.last.ErrTruncated != 0) {
				t.Fatal(got)
			}
		})
	}
}

func TestOutputComesAsItIsWritten(t *testing.T) {
	t.Parallel()
	d := asAny(t)
	fifo := t.TempDir() + "/fifo"
	for one := range d.lines(map[string]any{"shell": "mkfifo " + fifo + "; echo first; read word < " + fifo + "; echo $word"}) {
		switch string(one.Data) {
		case "first\n":
			// Only who has the first line can give the second.
			d.shell("echo second > " + fifo)
		case "second\n":
			return
		}
	}
	t.Fatal("the second line never came")
}

func TestManyCommandsAtOnceAndNotOneMore(t *testing.T) {
	t.Parallel()
	d := asAny(t)
	started := make(chan struct{})
	release := make(chan struct{})
	ended := make(chan line)
	for range 256 {
		go func() {
			var last line
			for one := range d.lines(map[string]any{"command": []string{"sleep", "100"}}) {
				last = one
				if one.Type == "start" {
					started <- struct{}{}
					<-release
					break
				}
			}
			ended <- last
		}()
	}
	for range 256 {
		<-started
	}
	status, said := d.call("POST", "/v1/exec", strings.NewReader(`{"command":["true"]}`))
	if status != 429 || !strings.Contains(said, "too_many") {
		t.Error(status, said)
	}
	_, said = d.call("GET", "/v1/status", nil)
	var told struct {
		Execs       int     `json:"execs"`
		IdleSeconds float64 `json:"idleSeconds"`
	}
	if err := json.Unmarshal([]byte(said), &told); err != nil || told.Execs != 256 || told.IdleSeconds != 0 {
		t.Error(said)
	}
	close(release)
	for range 256 {
		<-ended
	}
	http.DefaultClient.CloseIdleConnections()
	d.eventually("places are free again", func() bool {
		status, _ := d.call("POST", "/v1/exec", strings.NewReader(`{"command":["true"]}`))
		return status == 200
	})
}
