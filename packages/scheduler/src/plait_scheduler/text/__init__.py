"""t"""
from plait_scheduler.text.print import print_kernel, print_program
