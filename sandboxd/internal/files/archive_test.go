package files

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

var someTime = time.Date(2020, 1, 2, 3, 4, 5, 0, time.UTC)

func archive(t *testing.T, headers ...tar.Header) io.Reader {
	t.Helper()
	var made bytes.Buffer
	writer := tar.NewWriter(&made)
	for _, header := range headers {
		content := ""
		if header.Typeflag == 0 || header.Typeflag == tar.TypeReg {
			header.Typeflag = tar.TypeReg
			content = "content of " + header.Name
			header.Size = int64(len(content))
		}
		if header.Mode == 0 {
			header.Mode = 0o644
		}
		header.ModTime = someTime
		if err := writer.WriteHeader(&header); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(writer, content); err != nil {
			t.Fatal(err)
		}
	}
	if err := writer.Close(); err != nil {
		t.Fatal(err)
	}
	return &made
}

func folder(name string, mode int64) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: mode}
}

func symlink(name, target string) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: target}
}

func hardlink(name, target string) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeLink, Linkname: target}
}

func TestNothingIsUnpackedOutside(t *testing.T) {
	cases := map[string]struct {
		headers []tar.Header
		err     error
	}{
		"a name that climbs":            {[]tar.Header{{Name: "../evil"}}, ErrOutside},
		"a name that climbs in between": {[]tar.Header{{Name: "a/../../evil"}}, ErrOutside},
		"an absolute name":              {[]tar.Header{{Name: "/evil"}}, ErrOutside},
		"through a link that climbs":    {[]tar.Header{symlink("up", ".."), {Name: "up/evil"}}, ErrOutside},
		"through an absolute link":      {[]tar.Header{symlink("up", "OUTSIDE"), {Name: "up/evil"}}, ErrOutside},
		"through two links":             {[]tar.Header{symlink("a", "."), symlink("a/b", "../.."), {Name: "b/evil"}}, ErrOutside},
		"into a folder behind a link":   {[]tar.Header{symlink("up", ".."), folder("up/evil", 0o755)}, ErrOutside},
		"a hard link to above":          {[]tar.Header{hardlink("mine", "../secret")}, ErrOutside},
		"a hard link through a link":    {[]tar.Header{symlink("up", ".."), hardlink("mine", "up/secret")}, ErrOutside},
		"a device":                      {[]tar.Header{{Name: "dev", Typeflag: tar.TypeChar}}, ErrEntry},
		"a folder in a file's place":    {[]tar.Header{folder("a", 0o755), {Name: "a"}}, ErrEntry},
		"a file above a file":           {[]tar.Header{{Name: "a"}, {Name: "a/b"}}, syscall.ENOTDIR},
	}
	for name, one := range cases {
		t.Run(name, func(t *testing.T) {
			outer := t.TempDir()
			if err := os.WriteFile(filepath.Join(outer, "secret"), []byte("secret"), 0o600); err != nil {
				t.Fatal(err)
			}
			for index := range one.headers {
				one.headers[index].Linkname = strings.Replace(one.headers[index].Linkname, "OUTSIDE", outer, 1)
			}
			_, err := Unpack(archive(t, one.headers...), filepath.Join(outer, "inner"), Owner{})
			if !errors.Is(err, one.err) {
				t.Fatalf("error %v, not %v", err, one.err)
			}
			if left, _ := filepath.Glob(filepath.Join(outer, "*")); len(left) > 2 {
				t.Fatalf("found outside: %q", left)
			}
			if _, err := os.Lstat(filepath.Join(outer, "inner/mine")); err == nil {
				t.Fatal("a link to the secret was made")
			}
		})
	}
}

func TestAnArchiveComesBackAsItWas(t *testing.T) {
	source, target := filepath.Join(t.TempDir(), "made/on/the/way"), t.TempDir()
	headers := []tar.Header{
		folder(".", 0o700), folder("empty", 0o750), folder("closed", 0o555), {Name: "closed/file", Mode: 0o400},
		{Name: "deep/er/program", Mode: 0o755}, {Name: "sticky", Mode: 0o4755}, {Name: "not utf-8 \xff"},
		symlink("dangling", "/nowhere/at all"), symlink("near", "deep/er"), hardlink("twin", "sticky"),
		{Name: strings.Repeat("long/", 60) + "name"},
	}
	count, err := Unpack(archive(t, headers...), source, Owner{})
	if err != nil || count.Entries != len(headers)-1 {
		t.Fatalf("%+v, %v", count, err)
	}
	opened, err := Open(source)
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	var packed bytes.Buffer
	if err := opened.Pack(&packed); err != nil {
		t.Fatal(err)
	}
	if _, err := Unpack(&packed, target, Owner{}); err != nil {
		t.Fatal(err)
	}
	for _, header := range headers[1:] {
		info, err := os.Lstat(filepath.Join(target, header.Name))
		if err != nil {
			t.Errorf("%q: %v", header.Name, err)
			continue
		}
		switch header.Typeflag {
		case tar.TypeSymlink:
			if to, _ := os.Readlink(filepath.Join(target, header.Name)); to != header.Linkname {
				t.Errorf("%q leads to %q", header.Name, to)
			}
		case tar.TypeLink:
		default:
			mode := header.Mode
			if mode == 0 {
				mode = 0o644
			}
			if got := int64(info.Sys().(*syscall.Stat_t).Mode) & 0o7777; got != mode || !info.ModTime().Equal(someTime) {
				t.Errorf("%q has mode %o and time %s", header.Name, got, info.ModTime())
			}
		}
	}
	content, err := os.ReadFile(filepath.Join(target, "twin"))
	if err != nil || string(content) != "content of sticky" {
		t.Fatalf("%q, %v", content, err)
	}
}

func TestWhatIsInTheWayIsReplacedNotFollowed(t *testing.T) {
	outer := t.TempDir()
	inner, other := filepath.Join(outer, "inner"), filepath.Join(outer, "other")
	if err := errors.Join(os.Mkdir(inner, 0o755), os.WriteFile(other, []byte("kept"), 0o600),
		os.Symlink("../other", filepath.Join(inner, "file"))); err != nil {
		t.Fatal(err)
	}
	if _, err := Unpack(archive(t, tar.Header{Name: "./file"}), inner, Owner{}); err != nil {
		t.Fatal(err)
	}
	written, _ := os.ReadFile(filepath.Join(inner, "file"))
	kept, _ := os.ReadFile(other)
	if string(written) != "content of ./file" || string(kept) != "kept" {
		t.Fatalf("%q, and outside %q", written, kept)
	}
}

func TestBadStreamsAreToldApart(t *testing.T) {
	whole, err := io.ReadAll(archive(t, tar.Header{Name: "file"}))
	if err != nil {
		t.Fatal(err)
	}
	for name, stream := range map[string]string{"no tar": strings.Repeat("garbage ", 200), "cut off": string(whole[:515])} {
		t.Run(name, func(t *testing.T) {
			if _, err := Unpack(strings.NewReader(stream), t.TempDir(), Owner{}); !errors.Is(err, ErrTar) {
				t.Fatalf("error %v", err)
			}
		})
	}
}

func TestASingleFileIsPackedUnderItsName(t *testing.T) {
	folder := t.TempDir()
	if err := errors.Join(os.WriteFile(filepath.Join(folder, "real"), []byte("text"), 0o600),
		os.Symlink("real", filepath.Join(folder, "link"))); err != nil {
		t.Fatal(err)
	}
	opened, err := Open(filepath.Join(folder, "link"))
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	var packed bytes.Buffer
	if err := opened.Pack(&packed); err != nil {
		t.Fatal(err)
	}
	reader := tar.NewReader(&packed)
	header, err := reader.Next()
	if err != nil || header.Name != "link" || header.Typeflag != tar.TypeReg || header.Size != 4 {
		t.Fatalf("%+v, %v", header, err)
	}
}

func TestSpecialFilesAreLeftOutAndNotWaitedFor(t *testing.T) {
	folder := t.TempDir()
	pipe := filepath.Join(folder, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	opened, err := Open(folder)
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	var packed bytes.Buffer
	if err := opened.Pack(&packed); err != nil {
		t.Fatal(err)
	}
	if _, err := tar.NewReader(&packed).Next(); err != io.EOF {
		t.Fatalf("the archive isn't empty: %v", err)
	}
	if _, err := Open(pipe); !errors.Is(err, ErrNotRegular) {
		t.Fatalf("error %v", err)
	}
}
