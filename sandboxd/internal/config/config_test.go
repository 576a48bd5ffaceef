package config

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var digest = strings.Repeat("ab", 32)

func TestSettingsAreReadAndChecked(t *testing.T) {
	cases := map[string]struct {
		environment map[string]string
		wrong       string
		wipe        []string
		port        int
	}{
		"defaults":            {map[string]string{tokenName: digest}, "", nil, 8787},
		"all set":             {map[string]string{tokenName: digest, portName: "99", wipeName: "/a:/b/:"}, "", []string{"/a", "/b"}, 99},
		"no token":            {map[string]string{}, tokenName, nil, 0},
		"token cut short":     {map[string]string{tokenName: digest[:40]}, tokenName, nil, 0},
		"port out of range":   {map[string]string{tokenName: digest, portName: "70000"}, "1 to 65535", nil, 0},
		"wiping everything":   {map[string]string{tokenName: digest, wipeName: "/x/.."}, wipeName, nil, 0},
		"wiping by relation":  {map[string]string{tokenName: digest, wipeName: "tmp"}, wipeName, nil, 0},
		"wiping IPC or not":   {map[string]string{tokenName: digest, wipeIPCName: "yes"}, wipeIPCName, nil, 0},
		"disk not in bytes":   {map[string]string{tokenName: digest, diskName: "20Gi"}, diskName, nil, 0},
		"output not a number": {map[string]string{tokenName: digest, outputName: "16MiB"}, outputName, nil, 0},
	}
	for name, one := range cases {
		t.Run(name, func(t *testing.T) {
			settings, err := FromEnvironment(func(name string) (string, bool) {
				value, ok := one.environment[name]
				return value, ok
			})
			if one.wrong != "" {
				if err == nil || !strings.Contains(err.Error(), one.wrong) {
					t.Fatalf("error %v, should name %s", err, one.wrong)
				}
				return
			}
			if err != nil || settings.Port != one.port || !slices.Equal(settings.Wipe, one.wipe) {
				t.Fatalf("%+v, %v", settings, err)
			}
		})
	}
}

func TestTheTokenMayStandInAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token.sha256")
	lookup := func(name string) (string, bool) {
		value, ok := map[string]string{fileName: path}[name]
		return value, ok
	}
	if _, err := FromEnvironment(lookup); err == nil || !strings.Contains(err.Error(), fileName) {
		t.Fatalf("error %v, should name %s", err, fileName)
	}
	if err := os.WriteFile(path, []byte(digest+"\n"), 0o444); err != nil {
		t.Fatal(err)
	}
	settings, err := FromEnvironment(lookup)
	if err != nil || settings.Token[0] != 0xab {
		t.Fatalf("%+v, %v", settings, err)
	}
}

func TestCommandsDoNotSeeTheDaemonsVariables(t *testing.T) {
	kept := WithoutOwn([]string{"PATH=/bin", tokenName + "=" + digest, "GYMTRAIN_OTHER=1", wipeName + "=/tmp"})
	if want := []string{"PATH=/bin", "GYMTRAIN_OTHER=1"}; !slices.Equal(kept, want) {
		t.Fatalf("%q, not %q", kept, want)
	}
}
