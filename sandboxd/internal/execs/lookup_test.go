package execs

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestProgramsAreFoundInTheCommandsOwnPath(t *testing.T) {
	folder := t.TempDir()
	for name, mode := range map[string]os.FileMode{"bin/tool": 0o755, "bin/text": 0o644, "late/text": 0o755, "late/sh": 0o755} {
		path := filepath.Join(folder, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, nil, mode)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(folder, "bin/folder"), 0o755); err != nil {
		t.Fatal(err)
	}
	bin, late := filepath.Join(folder, "bin"), filepath.Join(folder, "late")
	cases := map[string]struct {
		program, path, cwd, want string
		err                      error
	}{
		"in the PATH":                     {"tool", "/nowhere:" + bin, "/", filepath.Join(bin, "tool"), nil},
		"by a path of its own":            {"./tool", bin, "/", "./tool", nil},
		"in a relative folder":            {"tool", "bin", folder, filepath.Join(bin, "tool"), nil},
		"not there":                       {"none", bin, "/", "", errNotFound},
		"a folder of that name":           {"folder", bin, "/", "", errNotFound},
		"not executable":                  {"text", bin, "/", "", errNotExecutable},
		"not executable, but later again": {"text", bin + ":" + late, "/", filepath.Join(late, "text"), nil},
	}
	for name, one := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := find(one.program, one.path, one.cwd)
			if got != one.want || !errors.Is(err, one.err) {
				t.Fatalf("%q, %v", got, err)
			}
		})
	}
	if got, ok := shell(late, "/"); !ok || got != filepath.Join(late, "sh") {
		t.Fatalf("shell %q", got)
	}
	if got, ok := shell(bin, "/"); ok {
		t.Fatalf("shell %q in a folder without one", got)
	}
}
