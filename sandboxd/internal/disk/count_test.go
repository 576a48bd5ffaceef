package disk

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

const mebibyte = 1 << 20

func write(t *testing.T, path string, bytes int) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.Write([]byte(strings.Repeat("x", bytes))); err != nil {
		t.Fatal(err)
	}
}

// counted is what lies in a folder.
func counted(t *testing.T, folder string, count counter) counter {
	t.Helper()
	if count.limit == 0 {
		count.limit = 1 << 40
	}
	if count.most == 0 {
		count.most = mostEntries
	}
	count.since = time.Now()
	one, err := openVolume(folder)
	if err != nil {
		t.Fatal(err)
	}
	defer one.root.Close()
	defer one.folder.Close()
	count.volume(one)
	return count
}

func about(t *testing.T, count counter, mebibytes float64) {
	t.Helper()
	if got := count.bytes / mebibyte; got < mebibytes || got > mebibytes+0.2 {
		t.Errorf("%.2f MiB, not %.2f", got, mebibytes)
	}
}

func TestBlocksOfAllFilesBelowAreCounted(t *testing.T) {
	folder := t.TempDir()
	write(t, folder+"/one", 2*mebibyte)
	write(t, folder+"/a/b/c/two", 3*mebibyte)
	write(t, folder+"/a/empty", 0)
	got := counted(t, folder, counter{})
	about(t, got, 5)
	if got.entries != 7 || got.uncounted != nil {
		t.Fatal(got.entries, got.uncounted)
	}
}

func TestAFileWithManyLinksCountsOnce(t *testing.T) {
	folder := t.TempDir()
	write(t, folder+"/one", 4*mebibyte)
	for number := range 6 {
		link := fmt.Sprintf("%s/%d/link", folder, number)
		if err := os.Mkdir(filepath.Dir(link), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Link(folder+"/one", link); err != nil {
			t.Fatal(err)
		}
	}
	about(t, counted(t, folder, counter{}), 4)
}

func TestHolesCountNothing(t *testing.T) {
	folder := t.TempDir()
	write(t, folder+"/sparse", mebibyte)
	if err := os.Truncate(folder+"/sparse", 1<<40); err != nil {
		t.Skip("no files of this size here: ", err)
	}
	about(t, counted(t, folder, counter{}), 1)
}

func TestLinksAreNotFollowed(t *testing.T) {
	folder, other := t.TempDir(), t.TempDir()
	write(t, other+"/large", 4*mebibyte)
	for _, target := range []string{other, other + "/large", "."} {
		if err := os.Symlink(target, filepath.Join(folder, fmt.Sprint(len(target)))); err != nil {
			t.Fatal(err)
		}
	}
	about(t, counted(t, folder, counter{}), 0)
}

func TestWhatIsMountedInAVolumeIsNotItsOwn(t *testing.T) {
	folder := t.TempDir()
	write(t, folder+"/mine", mebibyte)
	write(t, folder+"/a/mounted/large", 4*mebibyte)
	info, err := os.Lstat(folder + "/a/mounted")
	if err != nil {
		t.Fatal(err)
	}
	count := counter{mounted: map[inode]bool{inodeOf(info): true}}
	// A name is no proof: a command can rename what is above a mount, and put a folder of its own there.
	if err := os.Rename(folder+"/a", folder+"/b"); err != nil {
		t.Fatal(err)
	}
	write(t, folder+"/a/mounted/hidden", 2*mebibyte)
	about(t, counted(t, folder, count), 3)
}

func TestTheWalkEndsAtItsBounds(t *testing.T) {
	folder := t.TempDir()
	for number := range 50 {
		write(t, fmt.Sprintf("%s/%d/file", folder, number), mebibyte/8)
	}
	got := counted(t, folder, counter{most: 20})
	if got.entries != 21 || !got.full() {
		t.Error(got.entries)
	}
	got = counted(t, folder, counter{limit: mebibyte})
	if got.entries > 30 || !got.full() {
		t.Error(got.entries)
	}
}

func TestFoldersThatAreTooDeepAreReported(t *testing.T) {
	folder := t.TempDir()
	deep := folder + strings.Repeat("/d", mostDepth-1)
	write(t, deep+"/file", mebibyte)
	if got := counted(t, folder, counter{}); got.uncounted != nil || got.bytes < mebibyte {
		t.Fatal(got.uncounted, got.bytes)
	}
	write(t, deep+"/e/file", mebibyte)
	if got := counted(t, folder, counter{}); got.uncounted != errTooDeep {
		t.Fatal(got.uncounted)
	}
}

func TestAPathMayBeLongerThanTheKernelTakes(t *testing.T) {
	folder := t.TempDir()
	name := strings.Repeat("n", 60)
	script := `cd "$1"; for n in $(seq 1 90); do mkdir "$2" && cd "$2" || exit 1; done; head -c 1048576 /dev/zero >file`
	if said, err := exec.Command("sh", "-c", script, "sh", folder, name).CombinedOutput(); err != nil {
		t.Skipf("no such path here: %v %s", err, said)
	}
	got := counted(t, folder, counter{})
	about(t, got, 1)
	if got.uncounted != nil {
		t.Fatal(got.uncounted)
	}
}

func TestErrorsThatHideSomethingAreKept(t *testing.T) {
	for err, hides := range map[error]bool{
		syscall.EMFILE: true, syscall.ENFILE: true, syscall.EIO: true, syscall.ENOMEM: true,
		syscall.ENOENT: false, syscall.ENOTDIR: false, syscall.EACCES: false,
	} {
		var count counter
		count.missed(&os.PathError{Op: "open", Path: "x", Err: err})
		if (count.uncounted != nil) != hides {
			t.Error(err, count.uncounted)
		}
	}
}

// It runs itself as an ordinary user: root may list everything.
func TestRightsThatAUserTookAwayHideNothing(t *testing.T) {
	const inside = "GYMTRAIN_SANDBOX_TEST_HIDDEN"
	folder := os.Getenv(inside)
	if folder == "" {
		made, err := os.MkdirTemp("/tmp", "hidden")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(made)
		if os.Geteuid() == 0 {
			if err := os.Chown(made, 65532, 65532); err != nil {
				t.Fatal(err)
			}
		}
		program := filepath.Join(made, "program")
		content, err := os.ReadFile("/proc/self/exe")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(program, content, 0o755); err != nil {
			t.Fatal(err)
		}
		command := exec.Command(program, "-test.run", "^"+t.Name()+"$")
		command.Dir = "/"
		command.Env = []string{inside + "=" + made}
		if os.Geteuid() == 0 {
			command.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65532, Gid: 65532}}
		}
		if said, err := command.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, said)
		}
		return
	}
	own := folder + "/own"
	write(t, own+"/a/b/large", 2*mebibyte)
	one, err := openVolume(own)
	if err != nil {
		t.Fatal(err)
	}
	for _, taken := range []struct {
		path string
		mode os.FileMode
	}{{"/a/b", 0}, {"/a", 0o300}, {"", 0}} {
		if err := os.Chmod(own+taken.path, taken.mode); err != nil {
			t.Fatal(err)
		}
	}
	// So that whoever made it can remove it.
	defer func() {
		for _, path := range []string{"", "/a", "/a/b"} {
			_ = os.Chmod(own+path, 0o700)
		}
	}()
	count := counter{limit: 1 << 40, most: mostEntries, since: time.Now()}
	count.volume(one)
	about(t, count, 2)
	if info, err := os.Lstat(own); err != nil || info.Mode().Perm() != 0 {
		t.Fatal(info, err)
	}
}
