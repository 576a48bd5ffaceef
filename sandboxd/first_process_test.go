package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestTheSandboxSurvivesItsCommands(t *testing.T) {
	t.Parallel()
	d := asFirst(t)
	cases := map[string]struct{ shell, signal string }{
		"kill -9 of all":         {"sleep 100 & kill -9 -1; kill -9 $$", "KILL"},
		"kill -9 of the first":   {"kill -9 1; kill -9 $$", "KILL"},
		"TERM to all":            {"kill -TERM -1; kill -9 $$", "KILL"},
		"QUIT to the first":      {"kill -QUIT 1; kill -9 $$", "KILL"},
		"SEGV to the first":      {"kill -SEGV 1; kill -9 $$", "KILL"},
		"ABRT to the first":      {"kill -ABRT 1; kill -9 $$", "KILL"},
		"any signal, one by one": {"for s in $(seq 1 64); do kill -$s 1 2>/dev/null; done; kill -HUP $$", "HUP"},
	}
	for name, one := range cases {
		t.Run(name, func(t *testing.T) {
			if got := d.shell(one.shell); got.last.signal() != one.signal || got.last.Code < 128 {
				t.Fatal(got)
			}
			if got := d.shell("echo alive"); string(got.out) != "alive\n" || got.last.Code != 0 {
				t.Fatal("afterwards: ", got)
			}
		})
	}
}

// A signal without a handler kills even the first process while its main thread handles another one.
func TestTheSandboxSurvivesManySignalsAtOnce(t *testing.T) {
	t.Parallel()
	d := asFirst(t)
	flood := "for n in $(seq 1 40); do for s in $(seq 1 64); do kill -$s 1 2>/dev/null; done; done; echo sent"
	for range 5 {
		if got := d.shell(flood); string(got.out) != "sent\n" {
			t.Fatal(got)
		}
	}
}

func TestACommandStartsWithoutTheDaemonsDispositions(t *testing.T) {
	t.Parallel()
	d := asFirst(t)
	got := d.shell("cat /proc/self/status")
	for _, field := range []string{"SigBlk", "SigIgn", "SigCgt"} {
		if !strings.Contains(string(got.out), field+":\t0000000000000000\n") {
			t.Errorf("%s: %s", field, got.out)
		}
	}
}

func TestOneCommandsKillEndsTheOthersAndTheirCallersHear(t *testing.T) {
	t.Parallel()
	d := asFirst(t)
	for one := range d.lines(map[string]any{"command": []string{"sleep", "100"}}) {
		switch one.Type {
		case "start":
			d.shell("kill -9 -1")
		case "exit":
			if one.signal() != "KILL" || one.Code != 137 || one.TimedOut {
				t.Fatalf("%+v", one)
			}
			return
		}
	}
	t.Fatal("no exit line")
}

func TestOrphansAreCollected(t *testing.T) {
	t.Parallel()
	d := asFirst(t)
	for range 20 {
		d.shell("(sh -c 'exit 3' & ) ; (setsid sh -c 'exit 4' & )")
	}
	d.eventually("no zombies", func() bool {
		got := d.shell("cat /proc/[0-9]*/stat")
		return !strings.Contains(string(got.out), ") Z 1 ")
	})
}

func TestResetKillsEverythingAndWipes(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	d := asFirst(t, "GYMTRAIN_SANDBOX_WIPE="+folder)
	d.shell("mkdir -p " + folder + "/a/b; echo x > " + folder + "/a/b/c; setsid sleep 100 >/dev/null 2>&1 &")
	var last line
	asked := false
	for one := range d.lines(map[string]any{"command": []string{"sleep", "100"}}) {
		last = one
		if one.Type == "start" {
			status, body := d.call("POST", "/v1/reset", nil)
			asked = status == 202
			if !asked {
				t.Fatal(status, body)
			}
		}
	}
	// An exit would pass for the command's own.
	if last.Type != "start" {
		t.Fatalf("the running command's caller heard %+v", last)
	}
	if err := <-d.ended; err != nil {
		t.Fatal("the daemon ended with ", err)
	}
	d.ended <- nil
	if left, _ := filepath.Glob(folder + "/*"); len(left) > 0 {
		t.Fatalf("left: %q", left)
	}
}

func TestStartAndResetLeaveNothingInTheIPCNamespace(t *testing.T) {
	t.Parallel()
	ipcmk, err := exec.LookPath("ipcmk")
	if err != nil {
		t.Skip("needs the program ipcmk")
	}
	makeOne := ipcmk + " -M 4096 -S 1 -Q >/dev/null; "
	log := filepath.Join(t.TempDir(), "left")
	list := "cat /proc/sysvipc/* | grep -v shmid | grep -v semid | grep -v msqid"
	d := asFirstIn(t, makeOne+`"$@"; code=$?; `+list+" >"+log+"; exit $code", "GYMTRAIN_SANDBOX_WIPE_IPC=1")
	if got := d.shell(list); len(got.out) > 0 {
		t.Fatal("left from before the start: ", got)
	}
	d.shell(makeOne)
	if got := d.shell(list + " | wc -l"); string(got.out) != "3\n" {
		t.Fatal(got)
	}
	if status, body := d.call("POST", "/v1/reset", nil); status != 202 {
		t.Fatal(status, body)
	}
	ended := <-d.ended
	d.ended <- nil
	if ended != nil {
		t.Fatal("the daemon ended with ", ended)
	}
	if left, err := os.ReadFile(log); err != nil || len(left) > 0 {
		t.Fatalf("left: %s %v", left, err)
	}
}

func TestAResetThatCanNotEmptyEverythingFails(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	d := asFirst(t, "GYMTRAIN_SANDBOX_WIPE="+folder)
	if got := d.shell("mkdir " + folder + "/a && mount -t tmpfs none " + folder + "/a"); got.last.Code != 0 {
		t.Skip("no mounts here: ", got)
	}
	d.call("POST", "/v1/reset", nil)
	ended := <-d.ended
	d.ended <- nil
	if ended == nil {
		t.Fatal("the daemon ended as if everything were clean")
	}
}

func TestWhatACrashLeftIsWipedBeforeTheFirstCall(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "old"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	d := asAny(t, "GYMTRAIN_SANDBOX_WIPE="+folder)
	if got := d.exec(map[string]any{"command": []string{"ls", "-A", folder}}); len(got.out) > 0 {
		t.Fatal(got)
	}
}
