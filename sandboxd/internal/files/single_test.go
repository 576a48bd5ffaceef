package files

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

func TestAFileAppearsWholeOrNotAtAll(t *testing.T) {
	folder := t.TempDir()
	name := filepath.Join(folder, "new/file")
	if written, err := Write(name, 0o750, Owner{}, strings.NewReader("one")); err != nil || written != 3 {
		t.Fatal(written, err)
	}
	lost := errors.New("connection lost")
	if _, err := Write(name, 0o644, Owner{}, io.MultiReader(strings.NewReader("two"), failing{lost})); !errors.Is(err, lost) {
		t.Fatal(err)
	}
	content, err := os.ReadFile(name)
	info, statError := os.Stat(name)
	if err != nil || statError != nil || string(content) != "one" || info.Mode() != 0o750 {
		t.Fatalf("%q, %v, %v", content, info.Mode(), err)
	}
	if names, _ := os.ReadDir(filepath.Dir(name)); len(names) != 1 {
		t.Fatalf("left behind: %v", names)
	}
	if _, err := Write(filepath.Dir(name), 0o644, Owner{}, strings.NewReader("")); !errors.Is(err, ErrNotRegular) {
		t.Fatalf("a folder was overwritten: %v", err)
	}
}

func TestWipingEmptiesFoldersAndFollowsNoLinks(t *testing.T) {
	outer := t.TempDir()
	wiped, kept := filepath.Join(outer, "wiped"), filepath.Join(outer, "kept")
	closed := filepath.Join(wiped, "closed")
	if err := errors.Join(
		os.MkdirAll(filepath.Join(closed, "deep"), 0o755), os.Mkdir(kept, 0o755),
		os.WriteFile(filepath.Join(closed, "deep/file"), nil, 0o400), os.WriteFile(filepath.Join(kept, "file"), nil, 0o600),
		os.Symlink(kept, filepath.Join(wiped, "link")), os.Chmod(closed, 0),
	); err != nil {
		t.Fatal(err)
	}
	if err := Wipe([]string{wiped, filepath.Join(outer, "never made")}); err != nil {
		t.Fatal(err)
	}
	if names, err := os.ReadDir(wiped); err != nil || len(names) > 0 {
		t.Fatalf("left: %v, %v", names, err)
	}
	if _, err := os.Stat(filepath.Join(kept, "file")); err != nil {
		t.Fatal(err)
	}
}
