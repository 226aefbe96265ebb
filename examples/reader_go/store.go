package main

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
)

// store is a directory that tidelog writes to, or a copy of a bucket, in which each object's key is its path.
type store string

func (s store) path(key string) string { return filepath.Join(string(s), filepath.FromSlash(key)) }

func (s store) get(key string) ([]byte, error) { return os.ReadFile(s.path(key)) }

// getRange returns bytes [start, start+length), or fewer if the object ends earlier.
func (s store) getRange(key string, start, length int64) ([]byte, error) {
	file, err := os.Open(s.path(key))
	if err != nil {
		return nil, err
	}
	defer file.Close()
	data := make([]byte, length)
	n, err := file.ReadAt(data, start)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return data[:n], err
}

// names lists the next path components below a prefix, without those that the directory store marks with %.
func (s store) names(prefix string) []string {
	items, err := os.ReadDir(s.path(prefix))
	if err != nil {
		return nil
	}
	var found []string
	for _, item := range items {
		if !strings.Contains(item.Name(), "%") {
			found = append(found, item.Name())
		}
	}
	sort.Strings(found)
	return found
}

func missing(err error) bool { return errors.Is(err, fs.ErrNotExist) }
