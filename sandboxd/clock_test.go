package main

import (
	"go/ast"
	"go/parser"
	gotoken "go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// Times that Go made by itself hold the monotonic clock's reading beside the wall clock's, and waits and differences go
// by the former: a clock that is set while a command runs neither ends it nor lets it run on. These methods drop that
// reading, so they stand only where a time is shown or is a file's.
func TestNoWaitGoesByTheWallClock(t *testing.T) {
	t.Parallel()
	drops := map[string]bool{
		"Round": true, "Truncate": true, "UTC": true, "Local": true, "AddDate": true,
		"Unix": true, "UnixMilli": true, "UnixMicro": true, "UnixNano": true,
	}
	allowed := map[string]bool{
		"internal/server/server.go UTC":   true,
		"internal/files/at.go UnixNano":   true,
		"internal/disk/watch.go Truncate": true, // files
	}
	seen := 0
	err := filepath.WalkDir(".", func(path string, item fs.DirEntry, err error) error {
		if err != nil || item.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(gotoken.NewFileSet(), path, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(node ast.Node) bool {
			selector, ok := node.(*ast.SelectorExpr)
			if !ok || !drops[selector.Sel.Name] {
				return true
			}
			seen++
			if place := filepath.ToSlash(path) + " " + selector.Sel.Name; !allowed[place] {
				t.Errorf("%s drops the monotonic clock's reading", place)
			}
			return true
		})
		return nil
	})
	if err != nil || seen == 0 {
		t.Fatalf("%d places seen: %v", seen, err)
	}
}
