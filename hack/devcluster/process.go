package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// process is the content of a pidfile. Pids are reused; with its start time and boot id, a
// pid identifies one process for good.
type process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // clock ticks after boot
	Boot  string `json:"boot"`
}

// spawn starts a program that outlives this one, in its own session, with its output
// appended to logFile, and writes its pidfile.
func spawn(pidFile, logFile string, argv []string, env []string) error {
	for _, f := range []string{pidFile, logFile} {
		if err := os.MkdirAll(filepath.Dir(f), 0o755); err != nil {
			return err
		}
	}
	log, err := os.OpenFile(logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env, cmd.Dir = env, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	p, err := inspect(cmd.Process.Pid)
	if err != nil {
		return fmt.Errorf("%s ended at once; see %s", argv[0], logFile)
	}
	// Without this, a program that exits at once would be a zombie and look alive.
	go cmd.Wait()
	data, err := json.Marshal(p)
	if err != nil {
		return err
	}
	return writeFile(pidFile, append(data, '\n'), 0o644)
}

// inspect describes the process that currently has the pid.
func inspect(pid int) (process, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return process{}, err
	}
	start, state, err := parseStat(string(stat))
	if err != nil {
		return process{}, err
	}
	// While a killed process still has other threads, its ports are still taken.
	threads, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if (state == "Z" || state == "X") && len(threads) <= 1 {
		return process{}, os.ErrProcessDone
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return process{}, err
	}
	return process{PID: pid, Start: start, Boot: strings.TrimSpace(string(boot))}, nil
}

// parseStat parses the start time and the state of a process from /proc/<pid>/stat. The
// command's name, in parentheses, may itself contain spaces and parentheses.
func parseStat(stat string) (start uint64, state string, err error) {
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(fields) < 20 {
		return 0, "", fmt.Errorf("/proc/<pid>/stat has %d fields after the name, not 20 or more: %q", len(fields), stat)
	}
	start, err = strconv.ParseUint(fields[19], 10, 64)
	return start, fields[0], err
}

// readPID returns the process of a pidfile. ok is false unless that very process is alive.
func readPID(pidFile string) (process, bool) {
	data, err := os.ReadFile(pidFile)
	if err != nil {
		return process{}, false
	}
	var p process
	if json.Unmarshal(data, &p) != nil || p.PID <= 1 {
		return process{}, false
	}
	return p, p.alive()
}

func (p process) alive() bool {
	now, err := inspect(p.PID)
	return err == nil && now == p
}

// stop sends SIGTERM and, after patience, SIGKILL. It waits until the process is gone.
func (p process) stop(patience time.Duration) error {
	return p.end(patience, syscall.SIGTERM, syscall.SIGKILL)
}

// end sends one signal after another, with patience after each, until the process is gone.
func (p process) end(patience time.Duration, signals ...syscall.Signal) error {
	for _, sig := range signals {
		if !p.alive() {
			return nil
		}
		if err := syscall.Kill(p.PID, sig); err != nil && err != syscall.ESRCH {
			return fmt.Errorf("process %d: %w", p.PID, err)
		}
		for end := time.Now().Add(patience); p.alive() && time.Now().Before(end); {
			time.Sleep(20 * time.Millisecond)
		}
	}
	if p.alive() {
		return fmt.Errorf("process %d survived SIGKILL", p.PID)
	}
	return nil
}
