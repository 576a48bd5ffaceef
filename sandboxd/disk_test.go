package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gymtrain.dev/sandboxd/internal/disk"
)

// places is a folder with an empty message and the volumes of no image.
func places(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	for _, name := range []string{"message", "mountinfo"} {
		if err := os.WriteFile(filepath.Join(folder, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return folder
}

// endsWith waits for the daemon's end, and returns the message that it left.
func endsWith(t *testing.T, d *daemon, code int, folder string) string {
	t.Helper()
	select {
	case ended := <-d.ended:
		d.ended <- nil
		var status *exec.ExitError
		if !errors.As(ended, &status) || status.ExitCode() != code {
			t.Fatalf("it ended with %v, not %d", ended, code)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("it goes on")
	}
	said, err := os.ReadFile(filepath.Join(folder, "message"))
	if err != nil {
		t.Fatal(err)
	}
	return string(said)
}

func TestALargeTerminationMessageEndsTheSandbox(t *testing.T) {
	t.Parallel()
	folder := places(t)
	d := asAny(t, placesInstead+"="+folder)
	// Without a limit of the volumes, this one holds all the same.
	var last line
	for one := range d.lines(map[string]any{"shell": "head -c 3M /dev/zero > " + folder + "/message; sleep 100"}) {
		last = one
	}
	if last.Type == "exit" {
		t.Errorf("the command seems to have ended by itself: %+v", last)
	}
	if said := endsWith(t, d, disk.FilesFull, folder); !strings.Contains(said, "took 3 MiB of the node's disk") || len(said) > 4096 {
		t.Fatalf("%.200q", said)
	}
}

func TestAFullVolumeOfTheImageEndsTheSandbox(t *testing.T) {
	t.Parallel()
	d, folder, volume := withVolume(t, "GYMTRAIN_SANDBOX_DISK=8388608")
	if got := d.shell("head -c 4M /dev/zero > " + volume + "/half; sleep 5; echo here"); string(got.out) != "here\n" {
		t.Fatal("half of the limit: ", got)
	}
	d.shell("mkdir -p " + volume + "/a/b; cd " + volume + "/a; head -c 6M /dev/zero > b/more; sleep 100")
	said := endsWith(t, d, disk.VolumesFull, folder)
	if !strings.Contains(said, "/a volume) took more than 8 MiB") {
		t.Fatal(said)
	}
}

func TestWithoutALimitVolumesMayGrow(t *testing.T) {
	t.Parallel()
	d, _, volume := withVolume(t)
	if got := d.shell("head -c 20M /dev/zero > " + volume + "/large; sleep 5; echo here"); string(got.out) != "here\n" {
		t.Fatal(got)
	}
}

func TestAResetEmptiesTheVolumesOfTheImage(t *testing.T) {
	t.Parallel()
	// The kubelet keeps the container that has ended, with its volumes, while the next one serves.
	d, folder, volume := withVolume(t)
	d.shell("head -c 1M /dev/zero > " + volume + "/file; mkdir " + volume + "/a")
	if status, body := d.call("POST", "/v1/reset", nil); status != 202 {
		t.Fatal(status, body)
	}
	if ended := <-d.ended; ended != nil {
		t.Fatal("the daemon ended with ", ended)
	}
	d.ended <- nil
	if left, err := filepath.Glob(filepath.Join(folder, "*", "containers", "*", "volumes", "*", "*")); err != nil || len(left) > 0 {
		t.Fatal(left, err)
	}
}

// withVolume starts a daemon as the first process of a container whose image has one volume.
func withVolume(t *testing.T, settings ...string) (d *daemon, folder, volume string) {
	t.Helper()
	folder = places(t)
	id := strings.Repeat("0a", 32)
	source := filepath.Join(folder, "io.containerd.grpc.v1.cri", "containers", id, "volumes", id)
	volume = filepath.Join(folder, "a volume")
	for _, path := range []string{source, volume} {
		if err := os.MkdirAll(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	// Only this line: the machine may be a container with such volumes, and they would be emptied.
	inside := `mount --bind "$SOURCE" "$VOLUME" && grep -F "$LINE" /proc/self/mountinfo > "$LIST" && exec "$@"`
	d = asFirstIn(t, `exec "$1" --mount sh -c "$INSIDE" sh "$@"`, append(settings, placesInstead+"="+folder,
		"INSIDE="+inside, "SOURCE="+source, "VOLUME="+volume, "LINE="+filepath.Base(folder)+`/a\040volume`,
		"LIST="+filepath.Join(folder, "mountinfo"))...)
	// The shell's way to write it.
	return d, folder, strings.ReplaceAll(volume, " ", `\ `)
}
