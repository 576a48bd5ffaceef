package disk

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
)

// watched has a message, and a folder as the one volume of the image.
func watched(t *testing.T, limit int64) (watch *Watch, message, folder string) {
	t.Helper()
	message, folder = t.TempDir()+"/message", t.TempDir()
	write(t, message, 0)
	watch = New(Places{Mounts: "/no/such/mountinfo", Message: message}, limit)
	one, err := openVolume(folder)
	if err != nil {
		t.Fatal(err)
	}
	watch.volumes = append(watch.volumes, one)
	return watch, message, folder
}

func TestAMessageOfAMebibyteIsLeftAlone(t *testing.T) {
	watch, message, _ := watched(t, 0)
	for _, one := range []struct {
		bytes int
		ends  bool
	}{{4096, false}, {mebibyte - 65536, false}, {mebibyte + 65536, true}} {
		write(t, message, one.bytes)
		if full := watch.lookAtFiles(); (full != nil) != one.ends || one.ends && full.Code != FilesFull {
			t.Errorf("%d bytes: %v", one.bytes, full)
		}
	}
	// A file whose name is another's by now is still the same one.
	if err := os.Rename(message, message+"2"); err != nil {
		t.Fatal(err)
	}
	if full := watch.lookAtFiles(); full == nil || !strings.Contains(full.Error(), "may take 1 MiB") {
		t.Error(full)
	}
}

func TestOnlyMountedFilesAreWatchedBesideTheMessage(t *testing.T) {
	folder := t.TempDir()
	lines := "1 2 0:1 /x " + folder + "/hostname rw - ext4 /dev/vda rw\n"
	for _, name := range []string{"hostname", "resolv.conf"} {
		write(t, folder+"/"+name, 2*mebibyte)
	}
	if err := os.WriteFile(folder+"/mountinfo", []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	places := Places{Mounts: folder + "/mountinfo", Message: folder + "/none", Files: []string{folder + "/resolv.conf", folder + "/hostname"}}
	watch := New(places, 0)
	full := watch.lookAtFiles()
	if len(watch.files) != 1 || full == nil || full.Code != FilesFull || !strings.Contains(full.Error(), "/hostname took 2 MiB") {
		t.Fatal(watch.files, full)
	}
}

func TestVolumesMayTakeTheLimit(t *testing.T) {
	watch, _, folder := watched(t, 3*mebibyte)
	write(t, folder+"/one", 2*mebibyte)
	if full := watch.lookAtVolumes(); full != nil {
		t.Fatal(full)
	}
	write(t, folder+"/two", 2*mebibyte)
	full := watch.lookAtVolumes()
	if full == nil || full.Code != VolumesFull || !strings.Contains(full.Error(), "("+folder+") took more than 3 MiB") {
		t.Fatal(full)
	}
}

func TestVolumesMayHoldACountableNumberOfFiles(t *testing.T) {
	watch, _, folder := watched(t, 1<<40)
	watch.most = 10
	for number := range 10 {
		write(t, folder+"/"+strings.Repeat("f", number+1), 0)
	}
	if full := watch.lookAtVolumes(); full == nil || full.Code != VolumesFull || !strings.Contains(full.Error(), "10 files") {
		t.Fatal(full)
	}
}

func TestWhatCanNotBeCountedIsBorneForAWhile(t *testing.T) {
	watch, _, folder := watched(t, 1<<40)
	deep := folder + strings.Repeat("/d", mostDepth+1)
	write(t, deep+"/file", 0)
	if full := watch.lookAtVolumes(); full != nil || watch.uncounted.IsZero() {
		t.Fatal(full)
	}
	watch.uncounted = time.Now().Add(-patience - time.Second)
	full := watch.lookAtVolumes()
	if full == nil || full.Code != VolumesFull || !strings.Contains(full.Error(), "could not be counted for 30s: folders lie deeper") {
		t.Fatal(full)
	}
	if err := os.RemoveAll(folder + "/d"); err != nil {
		t.Fatal(err)
	}
	if full := watch.lookAtVolumes(); full != nil || !watch.uncounted.IsZero() {
		t.Fatal("it never forgets: ", full)
	}
}

func TestTheDiskIsFreeBeforeTheEnd(t *testing.T) {
	watch, message, folder := watched(t, mebibyte)
	write(t, message, 5*mebibyte)
	write(t, folder+"/a/b", 2*mebibyte)
	// Another folder has the volume's name by now.
	if err := os.Rename(folder, folder+"-renamed"); err != nil {
		t.Fatal(err)
	}
	write(t, folder+"/mine", 10)
	watch.Free(watch.lookAtFiles())
	said, err := os.ReadFile(message)
	if err != nil || string(said) != message+" took 5 MiB of the node's disk, and may take 1 MiB\n" {
		t.Fatalf("%.200q %v", said, err)
	}
	if left, err := os.ReadDir(folder + "-renamed"); err != nil || len(left) > 0 {
		t.Fatal(left, err)
	}
	if _, err := os.Stat(folder + "/mine"); err != nil {
		t.Fatal(err)
	}
}

// A file that nothing refers to any more is closed by the garbage collector, and its number may be another's by then.
func TestTheDiskIsFreeThoughMemoryIsFreedMeanwhile(t *testing.T) {
	watch, _, folder := watched(t, mebibyte)
	for number := range 500 {
		write(t, fmt.Sprintf("%s/%d/file", folder, number), 1)
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				runtime.GC()
			}
		}
	}()
	watch.Free(nil)
	close(stop)
	<-stopped
	if left, err := os.ReadDir(folder); err != nil || len(left) > 0 {
		t.Fatal(len(left), "are left", err)
	}
}

func TestAResetLeavesTheMessageAsItIs(t *testing.T) {
	watch, message, _ := watched(t, 0)
	write(t, message, 100)
	watch.Free(nil)
	if said, err := os.ReadFile(message); err != nil || len(said) != 100 {
		t.Fatal(len(said), err)
	}
}

func TestSizesAreForPeople(t *testing.T) {
	for bytes, want := range map[float64]string{0: "0 B", 512: "512 B", 1536: "1.5 KiB", 20 << 30: "20 GiB", 5 << 40: "5 TiB"} {
		if got := size(bytes); got != want {
			t.Errorf("%s, not %s", got, want)
		}
	}
}
