package main

import (
	"encoding/json"
	"fmt"
	"os"
	"sort"
)

// partition is a partition with its manifest as it was when open read it.
type partition struct {
	store    store
	prefix   string
	manifest *manifest
}

// open finds the live topic id of a name, or uses the given one, and reads the partition's manifest. A partition without a
// manifest is empty: its log is [0, 0).
func open(s store, cluster, topic, topicID string, number int) (*partition, error) {
	if topicID == "" {
		key := fmt.Sprintf("%s/topics/%s/topic.json", cluster, topic)
		data, err := s.get(key)
		if err != nil {
			return nil, fmt.Errorf("there is no topic %s", topic)
		}
		var file topicFile
		if err := decode(data, key, &file); err != nil {
			return nil, err
		}
		if file.State != "live" {
			return nil, fmt.Errorf("topic %s was deleted", topic)
		}
		if number >= file.Partitions {
			return nil, fmt.Errorf("topic %s has %d partitions", topic, file.Partitions)
		}
		topicID = file.TopicID
	}
	p := &partition{s, fmt.Sprintf("%s/topics/%s/%s/", cluster, topic, topicID), &manifest{}}
	key := fmt.Sprintf("%smanifests/%05d.json", p.prefix, number)
	data, err := s.get(key)
	if missing(err) {
		return p, nil
	}
	if err != nil {
		return nil, err
	}
	if err := decode(data, key, p.manifest); err != nil {
		return nil, err
	}
	if p.manifest.State != "live" {
		return nil, fmt.Errorf("%s: the partition was deleted", key)
	}
	return p, nil
}

func (p *partition) key(text string) string {
	if text[0] == '/' {
		return text[1:]
	}
	return p.prefix + text
}

func (p *partition) page(ref pageRef) (manifestPage, error) {
	data, err := p.store.get(p.key(ref.Key))
	if err != nil {
		return manifestPage{}, err
	}
	return decodePage(data, ref)
}

// live lists the live segments in offset order. Those in pages come first.
func (p *partition) live() ([]remoteSegment, error) {
	var found []remoteSegment
	for _, ref := range p.manifest.Pages {
		if ref.Kind == "live" {
			one, err := p.page(ref)
			if err != nil {
				return nil, err
			}
			found = append(found, one.Segments...)
		}
	}
	return append(found, p.manifest.Segments...), nil
}

// asOf changes the manifest to its state right after a commit.
func (p *partition) asOf(commit int64) error {
	now := p.manifest
	if commit == now.Commit {
		return nil
	}
	var pinned *pin
	for i := range now.Pins {
		if now.Pins[i].Commit == commit {
			pinned = &now.Pins[i]
		}
	}
	if commit > now.Commit || (commit < now.Swept && pinned == nil) {
		return fmt.Errorf("commit %d cannot be read: the newest is %d, removals up to commit %d are swept", commit, now.Commit, now.Swept)
	}
	all, err := p.live()
	if err != nil {
		return err
	}
	removed := now.Removed
	for _, ref := range now.Pages {
		if ref.Kind == "removed" && ref.LastCommit > commit {
			one, err := p.page(ref)
			if err != nil {
				return err
			}
			removed = append(removed, one.Removed...)
		}
	}
	for _, item := range removed {
		if item.isSegment() && item.Removed[0] > commit {
			all = append(all, item)
		}
	}
	then := *now
	then.Segments, then.Pages = nil, nil
	for _, one := range all {
		if one.Added[0] <= commit {
			then.Segments = append(then.Segments, one)
		}
	}
	sort.Slice(then.Segments, func(a, b int) bool { return then.Segments[a].Base < then.Segments[b].Base })
	then.LogStart, then.End = 0, 0
	if count := len(then.Segments); count > 0 {
		first := then.Segments[0]
		then.LogStart, then.End = first.Base, then.Segments[count-1].End
		if first.Base < now.LogStart && now.LogStart < first.End {
			then.LogStart = now.LogStart
		}
	}
	if pinned != nil {
		then.LogStart, then.End = pinned.LogStart, pinned.End
	}
	p.manifest = &then
	return nil
}

// front reads the first sections of a sidecar (index, checks, aborted) with one ranged read.
func (p *partition) front(of *remoteSegment) (*sidecar, error) {
	from, to := int64(1<<62), int64(0)
	wanted := map[string]span{}
	for _, name := range []string{"index", "checks", "aborted"} {
		where := of.Sections[name]
		wanted[name] = where
		from, to = min(from, where[0]), max(to, where[0]+where[1])
	}
	data, err := p.store.getRange(p.key(of.Sidecar), from, to-from)
	if err != nil {
		return nil, err
	}
	return parse(data, from, wanted, of.Base)
}

// batches reads from the batch of an index row, at position, to the segment's end. It reads whole MiB and checks each of them.
func (p *partition) batches(of *remoteSegment, front *sidecar, position int64) ([]batch, error) {
	start := position - position%mib
	data, err := p.store.getRange(p.key(of.Key), of.Position+start, of.Length-start)
	if err != nil {
		return nil, err
	}
	if int64(len(data)) != of.Length-start {
		return nil, fmt.Errorf("%s is cut short", of.Key)
	}
	for at := int64(0); at < int64(len(data)); at += mib {
		if crc(data[at:min(at+mib, int64(len(data)))]) != front.Checks[(start+at)/mib] {
			return nil, fmt.Errorf("%s: MiB %d is damaged", of.Key, (start+at)/mib)
		}
	}
	return split(data[position-start:])
}

// read calls handle with every record from an offset to the end. With committed, it leaves out aborted transactions.
func (p *partition) read(offset int64, committed bool, handle func(record) error) error {
	if offset < p.manifest.LogStart {
		return fmt.Errorf("offset %d is below log start %d", offset, p.manifest.LogStart)
	}
	all, err := p.live()
	if err != nil {
		return err
	}
	for i := range all {
		if of := &all[i]; of.End > offset {
			if err := p.readSegment(of, offset, committed, handle); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p *partition) readSegment(of *remoteSegment, offset int64, committed bool, handle func(record) error) error {
	front, err := p.front(of)
	if err != nil {
		return err
	}
	position := int64(0)
	for _, row := range front.Index {
		if row.Offset <= offset {
			position = row.Position
		}
	}
	found, err := p.batches(of, front, position)
	if err != nil {
		return err
	}
	for _, one := range found {
		if one.control() || one.next() <= offset || (committed && one.transactional() && isAborted(one, front.Aborted)) {
			continue
		}
		records, err := one.records()
		if err != nil {
			return err
		}
		for _, item := range records {
			if item.Offset >= offset {
				if err := handle(item); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func isAborted(one batch, transactions []aborted) bool {
	for _, txn := range transactions {
		if txn.Producer == one.producer() && txn.First <= one.base() && one.base() <= txn.Last {
			return true
		}
	}
	return false
}

// firstAt finds the first record, in the order of offsets from log start on, whose timestamp is at or after a time.
func (p *partition) firstAt(timestamp int64) (*int64, error) {
	all, err := p.live()
	if err != nil {
		return nil, err
	}
	for i := range all {
		of := &all[i]
		if of.MaxTimestamp < timestamp || of.End <= p.manifest.LogStart {
			continue
		}
		front, err := p.front(of)
		if err != nil {
			return nil, err
		}
		at := sort.Search(len(front.Index), func(i int) bool { return front.Index[i].MaxTimestamp >= timestamp })
		if at == len(front.Index) {
			continue
		}
		found, err := p.batches(of, front, front.Index[at].Position)
		if err != nil {
			return nil, err
		}
		for _, one := range found {
			if one.control() || one.maxTime() < timestamp || one.next() <= p.manifest.LogStart {
				continue
			}
			records, err := one.records()
			if err != nil {
				return nil, err
			}
			for _, item := range records {
				if item.Timestamp >= timestamp && item.Offset >= p.manifest.LogStart {
					return &item.Offset, nil
				}
			}
		}
	}
	return nil, nil
}

// describe prints each live segment with every section of its sidecar, and the newest sidecar.
func (p *partition) describe() error {
	out := json.NewEncoder(os.Stdout)
	all, err := p.live()
	if err != nil {
		return err
	}
	for i := range all {
		data, err := p.store.get(p.key(all[i].Sidecar))
		if err != nil {
			return err
		}
		sections, err := readSidecar(data, &all[i])
		if err != nil {
			return fmt.Errorf("%s: %w", all[i].Sidecar, err)
		}
		found, err := parse(data, 0, sections, all[i].Base)
		if err != nil {
			return fmt.Errorf("%s: %w", all[i].Sidecar, err)
		}
		if err := out.Encode(map[string]any{"segment": all[i], "sidecar": found}); err != nil {
			return err
		}
	}
	if newest := p.manifest.Sidecar; newest != nil {
		data, err := p.store.get(p.key(newest.Key))
		if err != nil {
			return err
		}
		found, err := parse(data, 0, newest.Sections, 0)
		if err != nil {
			return err
		}
		return out.Encode(map[string]any{"manifest": p.manifest, "epochs": found.Epochs, "producers": found.Producers})
	}
	return nil
}
